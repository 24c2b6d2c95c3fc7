"""Bugs planted in the lowering, one at a time: does the validator alone refuse each Plan that does not compute its program?"""
