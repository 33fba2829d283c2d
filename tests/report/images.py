"""What every drawn figure must look like."""

from pathlib import Path

import matplotlib.image
import numpy as np


def check_image(path: Path) -> None:
    """Something is drawn, and nothing is cut off at the picture's border."""
    pixels = matplotlib.image.imread(path)[..., :3].mean(axis=-1)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.min() > 0.9
    assert (pixels < 0.9).mean() > 0.01
    assert len(np.unique(pixels)) > 20
