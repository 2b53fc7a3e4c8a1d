"""Pictures of maps, of costs and of training, in colours that everybody can tell apart.

Every function draws on the Axes that you give it, or on a new Figure, and returns the Axes. It
never touches pyplot or its state.
"""

from mongefit.plotting._calibration import plot_calibration as plot_calibration
from mongefit.plotting._convex import plot_convex as plot_convex
from mongefit.plotting._displacements import plot_displacements as plot_displacements
from mongefit.plotting._explanations import plot_curvature as plot_curvature
from mongefit.plotting._explanations import plot_directions as plot_directions
from mongefit.plotting._figures import figure_size as figure_size
from mongefit.plotting._figures import save_figure as save_figure
from mongefit.plotting._history import plot_choice as plot_choice
from mongefit.plotting._history import plot_history as plot_history
from mongefit.plotting._history import plot_selection as plot_selection
from mongefit.plotting._maps import plot_map as plot_map
