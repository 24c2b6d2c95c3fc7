"""What is kept and what is computed again: our choice beside torch's min-cut partitioner with a memory budget, estimated and measured on a CPU."""
