"""Fitting as plain functions: prepare(options, data) → Task, train(Task) → runs, finish → Fitted.

Estimators hold no logic: they pass their options and data to these functions and keep the result.
Every function enters double precision itself.
"""

from mongefit._fitting.apply import between as between
from mongefit._fitting.apply import conditional as conditional
from mongefit._fitting.apply import corrections as corrections
from mongefit._fitting.apply import cost_matrix as cost_matrix
from mongefit._fitting.apply import coupling as coupling
from mongefit._fitting.apply import growth as growth
from mongefit._fitting.apply import log_density as log_density
from mongefit._fitting.apply import map_points as map_points
from mongefit._fitting.apply import transport_points as transport_points
from mongefit._fitting.data import FitData as FitData
from mongefit._fitting.journey import Journey as Journey
from mongefit._fitting.preparing import Task as Task
from mongefit._fitting.preparing import prepare as prepare
from mongefit._fitting.preparing import prepare_legs as prepare_legs
from mongefit._fitting.training import Fitted as Fitted
from mongefit._fitting.training import Record as Record
from mongefit._fitting.training import check_checkpoint as check_checkpoint
from mongefit._fitting.training import finish as finish
from mongefit._fitting.training import finish_cost as finish_cost
from mongefit._fitting.training import finish_legs as finish_legs
from mongefit._fitting.training import fit as fit
from mongefit._fitting.training import train as train
from mongefit._fitting.training import train_alike as train_alike
from mongefit._options import FitOptions as FitOptions
