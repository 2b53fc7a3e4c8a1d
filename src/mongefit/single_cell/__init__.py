"""AnnData in, maps between the cells of two times out; install it with ``mongefit[anndata]``."""

from mongefit.single_cell._columns import Times as Times
from mongefit.single_cell._fates import Intervals as Intervals
from mongefit.single_cell._fates import fates as fates
from mongefit.single_cell._fates import origins as origins
from mongefit.single_cell._fates import pull as pull
from mongefit.single_cell._fates import push as push
from mongefit.single_cell._fates import transition_table as transition_table
from mongefit.single_cell._genes import cost_genes as cost_genes
from mongefit.single_cell._genes import pull_back_genes as pull_back_genes
from mongefit.single_cell._mapping import cross_validate as cross_validate
from mongefit.single_cell._mapping import fit as fit
from mongefit.single_cell._mapping import select as select
from mongefit.single_cell._mapping import transport as transport
from mongefit.single_cell._model import SingleCellMap as SingleCellMap
from mongefit.single_cell._model import load as load
from mongefit.single_cell._pictures import plot_drivers as plot_drivers
from mongefit.single_cell._pictures import plot_fates as plot_fates
from mongefit.single_cell._pictures import plot_flow as plot_flow
from mongefit.single_cell._pictures import plot_path as plot_path
from mongefit.single_cell._pictures import plot_transitions as plot_transitions
from mongefit.single_cell._pictures import plot_transport as plot_transport
from mongefit.single_cell._representation import Components as Components
from mongefit.single_cell._representation import Representation as Representation
