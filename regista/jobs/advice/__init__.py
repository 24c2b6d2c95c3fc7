"""Advice on a job: what is wrong with it, what one knob changes, and a better configuration that its framework can express."""

from regista.jobs.advice.advice import Advice, advise
from regista.jobs.advice.screen import advice_json, show_advice
from regista.jobs.advice.search import Limits

__all__ = ["Advice", "Limits", "advice_json", "advise", "show_advice"]
