"""Signals and images: convolution, what looks at one plane at a time, and Fourier transforms; in each the batch and the channels are factors."""
