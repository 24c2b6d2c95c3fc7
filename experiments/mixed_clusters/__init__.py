"""Pipelines over clusters of two kinds of device: layers by speed against an even cut."""
