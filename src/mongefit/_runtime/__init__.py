"""Where computations run. Only this package asks which device there is, and what it can do.

- `precision` enters float64 for a block of code.
- `devices` finds the current device and places arrays on it.
- `blocks` chooses how many pairs or rows to evaluate at a time.
- `memory` says how much is free and refuses what would not fit.
- `threads` limits the threads of LAPACK.
- `programs` compiles functions with options for the device, ahead of time where that helps.

The current device is JAX's default device, so ``jax.default_device`` decides. Placing arrays on
several devices belongs into `devices`.
"""

from mongefit._runtime.blocks import SEARCHED as SEARCHED
from mongefit._runtime.blocks import chunk_size as chunk_size
from mongefit._runtime.blocks import one_chunk as one_chunk
from mongefit._runtime.blocks import rows_per_block as rows_per_block
from mongefit._runtime.blocks import rows_per_call as rows_per_call
from mongefit._runtime.devices import copy_to_host as copy_to_host
from mongefit._runtime.devices import current_device as current_device
from mongefit._runtime.devices import device_summary as device_summary
from mongefit._runtime.devices import draw_on_cpu as draw_on_cpu
from mongefit._runtime.devices import is_traced as is_traced
from mongefit._runtime.devices import on_cpu as on_cpu
from mongefit._runtime.devices import to_device as to_device
from mongefit._runtime.memory import LARGEST_FACTORISED as LARGEST_FACTORISED
from mongefit._runtime.memory import available_memory as available_memory
from mongefit._runtime.memory import device_memory as device_memory
from mongefit._runtime.memory import dual_bytes as dual_bytes
from mongefit._runtime.memory import require_memory as require_memory
from mongefit._runtime.precision import double_precision as double_precision
from mongefit._runtime.programs import TUNED as TUNED
from mongefit._runtime.programs import Program as Program
from mongefit._runtime.programs import compile_ahead as compile_ahead
from mongefit._runtime.programs import compile_meanwhile as compile_meanwhile
from mongefit._runtime.programs import drop_programs_if_crowded as drop_programs_if_crowded
from mongefit._runtime.programs import filter_jit as filter_jit
from mongefit._runtime.programs import usable_cores as usable_cores
from mongefit._runtime.threads import lapack_threads as lapack_threads
