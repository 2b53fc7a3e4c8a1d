"""Tables of points and pairs in csv, tsv, npy and npz files, written completely or not at all."""

from mongefit.files.atomic import atomic_file as atomic_file
from mongefit.files.atomic import atomic_write as atomic_write
from mongefit.files.atomic import check_writable as check_writable
from mongefit.files.atomic import remove_leftovers as remove_leftovers
from mongefit.files.paths import SUFFIXES as SUFFIXES
from mongefit.files.paths import StrPath as StrPath
from mongefit.files.paths import missing_file as missing_file
from mongefit.files.reading import read_pairs as read_pairs
from mongefit.files.reading import read_points as read_points
from mongefit.files.tables import MAX_BYTES as MAX_BYTES
from mongefit.files.writing import write_points as write_points
