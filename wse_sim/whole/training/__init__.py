"""Training of a chain of dense layers as one fabric program: a batch forward and backward, loss, update.

Symbols: k inputs and n outputs of a core; d samples in flight in a region; i a sample::

    moving columns              compute columns
    inlet     > x, twice >>>>   row of k inputs: forward for the products, backward for the weight gradient
    loss or g > > > > > > > >   last row: a column receives its n gradients, multiplies by the derivative, and
                                sends them up its column, twice: as a vector, and as words that trigger
                                sums of dx run west along the rows; a moving column collects them
                                and sends them on, row by row

Order of every core: forward of the first d samples; then backward of i - d and forward of i; then backward of
the rest; then the update. The inlet keeps the inputs of the d samples, so words from the link trigger both
products of a pass. Sums run in microthreads: while they wait for those of their neighbours, the core works on
the next pass. Along a long row they are passes late, so cores far down the row send their parts that many
passes later.

Loss: the moving core next to the last row also receives the logits; softmax and cross entropy are in fp32.
Gradients are summed in fp32 over the batch; the update is ``w -= r / B g`` on fp32 weights, rounded to fp16
for the products.

Colors: six per layer, as the plan reserves (operands; sums, alternating by row) in each direction. The
gradients for the last row travel on the color of sums that no core of that row uses.

    values.py             weights, samples and labels as the buffers of cores, and back
    stream_layouts.py     layouts and routes of streams
    samples_in_flight.py  samples in flight of every region
    layer.py              what the cores of a layer share: colors and buffers
    order.py              order of the passes, as loops
    loss.py               the loss of a sample and its gradient, on one core
    data_cores.py         cores that move data: inlets, and those that deal gradients out
    cores.py              cores that compute: rows with inputs, and the last row
    program.py            all layers of a plan as one program
"""

from wse_sim.whole.training.program import TrainingProgram, training_program
from wse_sim.whole.training.samples_in_flight import ROOMS
from wse_sim.whole.training.values import untiled

__all__ = ["ROOMS", "TrainingProgram", "training_program", "untiled"]
