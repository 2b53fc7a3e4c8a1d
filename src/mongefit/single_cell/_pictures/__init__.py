"""Pictures of where cells go: embeddings, tables, flows, genes and paths."""

from mongefit.single_cell._pictures._drivers import plot_drivers as plot_drivers
from mongefit.single_cell._pictures._fates import plot_fates as plot_fates
from mongefit.single_cell._pictures._flow import plot_flow as plot_flow
from mongefit.single_cell._pictures._path import plot_path as plot_path
from mongefit.single_cell._pictures._table import plot_transitions as plot_transitions
from mongefit.single_cell._pictures._transport import plot_transport as plot_transport
