"""What several experiments share: hand-made Plans with their prices, and a guard on small sizes."""
