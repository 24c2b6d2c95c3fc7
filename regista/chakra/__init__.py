"""Chakra execution traces (MLCommons): a simulated step of a Plan as one file per rank, and the nodes of files that others wrote."""

from regista.chakra.files import read_chakra, save_chakra
from regista.chakra.node import ChakraTrace, Node, NodeKind
from regista.chakra.step import chakra_trace

__all__ = ["ChakraTrace", "Node", "NodeKind", "chakra_trace", "read_chakra", "save_chakra"]
