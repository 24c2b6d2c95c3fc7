"""Parallelism: from a logical graph and a cluster to a verified Plan; options, stages x mesh x micro-batches, and memory."""
