"""Orders inside a Plan: of the passes on compute streams, and of ZeRO-3's gathers relative to the blocks that read their results."""
