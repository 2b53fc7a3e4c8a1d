"""AnnData in, maps between the cells of two times out; install it with ``mongefit[anndata]``."""

from mongefit.single_cell.choosing import cross_validate as cross_validate
from mongefit.single_cell.choosing import select as select
from mongefit.single_cell.genes import cost_genes as cost_genes
from mongefit.single_cell.genes import pull_back_genes as pull_back_genes
from mongefit.single_cell.mapping import SingleCellMap as SingleCellMap
from mongefit.single_cell.mapping import fit as fit
from mongefit.single_cell.mapping import load as load
from mongefit.single_cell.mapping import transport as transport
from mongefit.single_cell.pictures import plot_transport as plot_transport
from mongefit.single_cell.representation import Components as Components
from mongefit.single_cell.representation import Representation as Representation
from mongefit.single_cell.times import Times as Times
