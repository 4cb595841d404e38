"""The deployment: the image, the compose file, and the supply chain."""
