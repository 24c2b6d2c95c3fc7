"""Semantic edits of Plans, made by law, and an oracle that performs each: is a Plan that computes something else refused?"""
