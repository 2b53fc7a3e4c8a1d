"""Training the cost and its map: a pure step, run many at a time in one compiled scan.

`step(problem, state) -> (state, info)`: the state is what the next step needs, the info what a
person wants to see. A step whose solves failed or whose gradient is not finite is not applied:
the parameters go half the way back to the last ones that worked, epsilon is held up for a while,
and the step is counted.
"""

from mongefit.training.batches import Batches as Batches
from mongefit.training.checkpoints import Checkpoint as Checkpoint
from mongefit.training.problem import DEFAULT_OPTIMISER as DEFAULT_OPTIMISER
from mongefit.training.problem import Model as Model
from mongefit.training.problem import Problem as Problem
from mongefit.training.problem import Schedule as Schedule
from mongefit.training.problem import trainable as trainable
from mongefit.training.run import Run as Run
from mongefit.training.run import run_interval as run_interval
from mongefit.training.run import train as train
from mongefit.training.run import train_each as train_each
from mongefit.training.state import Info as Info
from mongefit.training.state import State as State
from mongefit.training.state import initial_state as initial_state
from mongefit.training.state import needed as needed
from mongefit.training.step import objective as objective
from mongefit.training.step import step as step
