"""Model files: what fitted estimators and their parts are written to and read from."""

from mongefit._storage.estimators import describe_options as describe_options
from mongefit._storage.models import FORMAT_VERSION as FORMAT_VERSION
from mongefit._storage.models import Section as Section
from mongefit._storage.models import load as load
from mongefit._storage.models import load_with_cells as load_with_cells
from mongefit._storage.models import read_bundle as read_bundle
from mongefit._storage.models import read_header as read_header
from mongefit._storage.models import save as save
from mongefit._storage.models import save_bundle as save_bundle
