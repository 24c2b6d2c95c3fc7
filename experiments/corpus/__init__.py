"""The corpus: models of transformers, torchvision and timm as their libraries ship them, planned in several ways and compared with one device."""
