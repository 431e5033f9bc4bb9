//! The model: a multi-layer perceptron that learns the outputs of a fixed random one.
//!
//! Only additions, multiplications and divisions of `f64` in a fixed order: no function of libm,
//! whose last bit may differ between machines. Equal inputs give equal bits anywhere.

use std::iter::repeat_with;

const INPUTS: usize = 12;
const HIDDEN: usize = 24;
const OUTPUTS: usize = 2;
/// Samples a rank sees in a step.
const BATCH: u32 = 4;
const EVALUATION_SAMPLES: u32 = 256;
const LEARNING_RATE: f64 = 0.1;

/// Weights of the hidden layer: per unit its inputs, then its bias.
const HIDDEN_WEIGHTS: usize = HIDDEN * (INPUTS + 1);
/// All weights: the hidden layer's, then per output the hidden units, then its bias.
pub(crate) const WEIGHTS: usize = HIDDEN_WEIGHTS + OUTPUTS * (HIDDEN + 1);

/// Streams of pseudo-random numbers that must not overlap.
const STREAM_WEIGHTS: u64 = 1;
const STREAM_TEACHER: u64 = 2;
const STREAM_DATA: u64 = 3;
const STREAM_EVALUATION: u64 = 4;

/// The weights.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    weights: Vec<f64>,
}

/// What is to be learned: the teacher's outputs, on data that follow from the seed.
#[derive(Debug)]
pub(crate) struct Task {
    seed: u64,
    teacher: Model,
}

/// Gradient and loss, summed over samples and, by [`Gradient::add`], over ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gradient {
    pub(crate) loss: f64,
    pub(crate) of_weights: Vec<f64>,
}

impl Model {
    /// The weights every run with this seed starts from.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::random(&mut Random::new(seed, STREAM_WEIGHTS, 0, 0), 0.25)
    }

    /// `None` unless there are exactly [`WEIGHTS`].
    pub(crate) fn from_weights(weights: Vec<f64>) -> Option<Self> {
        (weights.len() == WEIGHTS).then_some(Self { weights })
    }

    pub(crate) fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// One step of SGD along the sum of the gradients of `world` ranks.
    pub(crate) fn descend(&mut self, sum: &Gradient, world: u32) {
        let rate = LEARNING_RATE / (f64::from(world) * f64::from(BATCH));
        for (weight, slope) in self.weights.iter_mut().zip(&sum.of_weights) {
            *weight -= rate * slope;
        }
    }

    /// FNV-1a over the bits of the weights.
    pub(crate) fn digest(&self) -> u64 {
        let mut hash = Fnv::new();
        for weight in &self.weights {
            hash.write(&weight.to_le_bytes());
        }
        hash.finish()
    }

    fn random(random: &mut Random, scale: f64) -> Self {
        let weights = repeat_with(|| random.symmetric() * scale).take(WEIGHTS).collect();
        Self { weights }
    }

    /// The hidden units before their activation, and the outputs.
    fn forward(&self, input: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (hidden, output) = self.weights.split_at(HIDDEN_WEIGHTS);
        let sums: Vec<f64> =
            hidden.chunks_exact(INPUTS + 1).map(|unit| affine(unit, input)).collect();
        let active: Vec<f64> = sums.iter().map(|sum| softsign(*sum)).collect();
        let outputs = output.chunks_exact(HIDDEN + 1).map(|unit| affine(unit, &active)).collect();
        (sums, outputs)
    }

    /// Adds the loss and the gradient of one sample.
    fn learn(&self, input: &[f64], target: &[f64], gradient: &mut Gradient) {
        let (sums, outputs) = self.forward(input);
        gradient.loss += half_square_error(&outputs, target);
        let active: Vec<f64> = sums.iter().map(|sum| softsign(*sum)).collect();
        let (_, output_weights) = self.weights.split_at(HIDDEN_WEIGHTS);
        let (hidden_slopes, output_slopes) = gradient.of_weights.split_at_mut(HIDDEN_WEIGHTS);
        let mut back = [0.0; HIDDEN];
        for ((unit, slopes), (output, target)) in output_weights
            .chunks_exact(HIDDEN + 1)
            .zip(output_slopes.chunks_exact_mut(HIDDEN + 1))
            .zip(outputs.iter().zip(target))
        {
            let error = output - target;
            add_scaled(slopes, &active, error);
            for (back, weight) in back.iter_mut().zip(unit) {
                *back += error * weight;
            }
        }
        for (slopes, (back, sum)) in
            hidden_slopes.chunks_exact_mut(INPUTS + 1).zip(back.iter().zip(&sums))
        {
            let width = 1.0 + sum.abs();
            add_scaled(slopes, input, back / (width * width));
        }
    }
}

impl Task {
    pub(crate) fn new(seed: u64) -> Self {
        let teacher = Model::random(&mut Random::new(seed, STREAM_TEACHER, 0, 0), 0.75);
        Self { seed, teacher }
    }

    /// The gradient of one rank's shard of one step; the shard follows from seed, step and rank.
    pub(crate) fn gradient(&self, model: &Model, step: u64, rank: u32) -> Gradient {
        let mut random = Random::new(self.seed, STREAM_DATA, step, rank);
        let mut gradient = Gradient { loss: 0.0, of_weights: vec![0.0; WEIGHTS] };
        for _ in 0..BATCH {
            let input = random.input();
            model.learn(&input, &self.teacher.forward(&input).1, &mut gradient);
        }
        gradient
    }

    /// The mean loss over samples no rank trains on.
    pub(crate) fn evaluate(&self, model: &Model) -> f64 {
        let mut random = Random::new(self.seed, STREAM_EVALUATION, 0, 0);
        let mut sum = 0.0;
        for _ in 0..EVALUATION_SAMPLES {
            let input = random.input();
            sum += half_square_error(&model.forward(&input).1, &self.teacher.forward(&input).1);
        }
        sum / f64::from(EVALUATION_SAMPLES)
    }
}

impl Gradient {
    /// Adds the gradient of the next rank. Floating-point sums depend on their order: callers add
    /// ranks in ascending order.
    pub(crate) fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        for (sum, slope) in self.of_weights.iter_mut().zip(&other.of_weights) {
            *sum += slope;
        }
    }

    /// The mean loss per sample of a sum over `world` ranks.
    pub(crate) fn mean_loss(&self, world: u32) -> f64 {
        self.loss / (f64::from(world) * f64::from(BATCH))
    }
}

/// A unit's weighted sum: weights, then the bias.
fn affine(unit: &[f64], input: &[f64]) -> f64 {
    let weighted: f64 = unit.iter().zip(input).map(|(weight, value)| weight * value).sum();
    weighted + unit.last().copied().unwrap_or(0.0)
}

/// The slopes of a unit's weights and bias, for an error at its sum.
fn add_scaled(slopes: &mut [f64], input: &[f64], error: f64) {
    for (slope, value) in slopes.iter_mut().zip(input.iter().chain(&[1.0])) {
        *slope += error * value;
    }
}

/// Stands in for tanh, which would be libm's.
fn softsign(value: f64) -> f64 {
    value / (1.0 + value.abs())
}

fn half_square_error(output: &[f64], target: &[f64]) -> f64 {
    output
        .iter()
        .zip(target)
        .map(|(output, target)| (output - target) * (output - target))
        .sum::<f64>()
        * 0.5
}

/// `SplitMix64` (Steele, Lea, Flood 2014), seeded by everything a draw may depend on.
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64, stream: u64, step: u64, rank: u32) -> Self {
        let mut hash = Fnv::new();
        for part in [seed, stream, step, u64::from(rank)] {
            hash.write(&part.to_le_bytes());
        }
        Self { state: hash.finish() }
    }

    fn input(&mut self) -> Vec<f64> {
        repeat_with(|| self.symmetric()).take(INPUTS).collect()
    }

    /// Uniform in [-1, 1).
    fn symmetric(&mut self) -> f64 {
        let [a, b, c, d, ..] = self.next().to_be_bytes();
        f64::from(i32::from_be_bytes([a, b, c, d])) / 2_147_483_648.0
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// FNV-1a, 64 bits: detects accidents, not forgeries.
#[derive(Debug)]
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// By words of eight bytes, which is faster; what is left, by bytes.
    pub(crate) fn write_words(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.0 = (self.0 ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.write(rest);
    }

    pub(crate) fn finish(self) -> u64 {
        self.0
    }
}
