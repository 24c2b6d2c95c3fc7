"""How a logical tensor lies on a mesh: its parts, and the boxing steps that need no communication."""
