"""Orders inside a Plan: of the passes on a compute stream, and of ZeRO-3's gathers before the blocks that read them."""
