"""Training: a pure step, run many at a time in one compiled scan.

`step(problem, state) -> (state, info)`: the state is what the next step needs, the info what a
person wants to see. A `Problem` says what is evaluated: `CostProblem` trains a cost on the map
between two clouds, `BatchedProblem` does so on random parts of them, and `LegsProblem` on several
pairs of clouds; baselines have their own.
"""

from mongefit._training.batches import BatchedProblem as BatchedProblem
from mongefit._training.checkpoints import Checkpoint as Checkpoint
from mongefit._training.costs import CostProblem as CostProblem
from mongefit._training.costs import Model as Model
from mongefit._training.legs import Composed as Composed
from mongefit._training.legs import LegsModel as LegsModel
from mongefit._training.legs import LegsProblem as LegsProblem
from mongefit._training.problem import Evaluation as Evaluation
from mongefit._training.problem import Problem as Problem
from mongefit._training.problem import Recipe as Recipe
from mongefit._training.problem import Schedule as Schedule
from mongefit._training.problem import learns as learns
from mongefit._training.problem import trainable as trainable
from mongefit._training.run import Run as Run
from mongefit._training.run import run_interval as run_interval
from mongefit._training.run import train as train
from mongefit._training.run import train_each as train_each
from mongefit._training.state import Info as Info
from mongefit._training.state import State as State
from mongefit._training.state import initial_state as initial_state
from mongefit._training.step import objective as objective
from mongefit._training.step import step as step
