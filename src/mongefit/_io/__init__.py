"""Tables of points and pairs in csv, tsv, npy and npz files, written completely or not at all."""

from mongefit._io.atomic import atomic_file as atomic_file
from mongefit._io.atomic import atomic_write as atomic_write
from mongefit._io.atomic import check_writable as check_writable
from mongefit._io.atomic import locked_folder as locked_folder
from mongefit._io.paths import MAX_BYTES as MAX_BYTES
from mongefit._io.paths import SUFFIXES as SUFFIXES
from mongefit._io.paths import StrPath as StrPath
from mongefit._io.paths import missing_file as missing_file
from mongefit._io.paths import require_file as require_file
from mongefit._io.tables import read_pairs as read_pairs
from mongefit._io.tables import read_points as read_points
from mongefit._io.tables import write_points as write_points
