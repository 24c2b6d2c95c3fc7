"""A timeline for the browser: one self-contained HTML file that zooms, with every act, every idle gap and its reason, and live bytes."""

from regista.views.timeline.page import TEMPLATES, Timeline, draw_timeline, save_timeline

__all__ = ["TEMPLATES", "Timeline", "draw_timeline", "save_timeline"]
