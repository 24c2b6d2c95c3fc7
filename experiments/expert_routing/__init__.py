"""Steps of mixtures of experts under skewed routing: plans made for even loads and plans made for the skew, played under the same draws."""
