"""Descriptions of a run for clusters that others manage: Kubernetes (Kubeflow Trainer) and Slurm.  Pure: a Plan in, text out."""

from regista.deploy.kubernetes import train_job
from regista.deploy.layout import NodeLayout, node_layout
from regista.deploy.slurm import sbatch_script

__all__ = ["NodeLayout", "node_layout", "sbatch_script", "train_job"]
