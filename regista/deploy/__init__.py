"""Descriptions of a run or a sweep for clusters that others manage: Kubernetes (Kubeflow Trainer) and Slurm.  Pure: text comes out."""

from regista.deploy.kubernetes import train_job
from regista.deploy.layout import NodeLayout, node_layout
from regista.deploy.slurm import sbatch_script
from regista.deploy.sweep import sweep_script

__all__ = ["NodeLayout", "node_layout", "sbatch_script", "sweep_script", "train_job"]
