//! Launches of the products of few rows, and of those that do what follows them too.

use super::launch::{Element, Launch, Ptr, strided};
use super::row_launches::{QkvArgs, RmsNormArgs};
use crate::{EightBitForm, FourBitForm, RecordForm};

/// `out = x w^T + bias`, added to what `out` holds if asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MatmulArgs {
    /// The element's `[rows][inputs]`.
    pub x: Ptr,
    /// The element's `[outputs][inputs]`, row after row.
    pub w: Ptr,
    /// f32 `[outputs]`, or null.
    pub bias: Ptr,
    /// f32 `[rows][outputs]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Inputs; in bf16 a multiple of 32.
    pub inputs: u32,
    /// Outputs.
    pub outputs: u32,
    /// 1: add to `out`; 0: overwrite it.
    pub add: u32,
    /// Of weights in records their [form](form_of), else 0.
    pub form: u32,
    /// Workspace for the sums of blocks that split the inputs, f32 `[splits][rows][outputs]`; null: they do not.
    pub parts: Ptr,
    /// u32, [`MatmulArgs::TICKETS`] of them: 0, and 0 again afterwards.
    pub tickets: Ptr,
}

impl MatmulArgs {
    /// Most rows whose product does what follows it too; a norm, of fewer ([`MatmulNormArgs::MOST_ROWS`]).
    pub const MOST_ROWS: u32 = 16;
    /// Most rows for which weights in records are not widened first.
    pub const MOST_ROWS_OF_RECORDS: u32 = 64;
    /// Most blocks that split the inputs of a tile of more rows: as many as the warps that do among few.
    pub const SPLITS: u32 = 8;
    /// Most tiles that are split.
    pub const TICKETS: u32 = 256;
    /// Blocks of more rows that an SM has room for at once.
    const AT_ONCE: u32 = 2;

    /// The element is that of `x` and `w`. In bf16 a row has the same bits whatever the number of rows. The workspace, if there is one, is for
    /// [`MatmulArgs::SPLITS`].
    ///
    /// # Panics
    /// In bf16, if inputs are no multiple of 32.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<MatmulArgs> {
        self.launch_by(element, most_rows, sms, None)
    }

    /// The same, where bits may depend on the number of rows, in less time if there are many of them. The workspace has room for so many splits.
    ///
    /// # Panics
    /// As [`MatmulArgs::launch`].
    #[must_use]
    pub fn launch_of_any_bits(
        self,
        element: Element,
        most_rows: u32,
        sms: u32,
        most_splits: u32,
    ) -> Launch<MatmulArgs> {
        self.launch_by(element, most_rows, sms, Some(most_splits))
    }

    fn launch_by(
        self,
        element: Element,
        most_rows: u32,
        sms: u32,
        of_any_bits: Option<u32>,
    ) -> Launch<MatmulArgs> {
        if element == Element::F32 {
            let blocks = strided((most_rows * self.outputs).div_ceil(8), sms, 8);
            return Launch::new("matmul_f32", [blocks, 1, 1], 256, self);
        }
        assert!(self.inputs.is_multiple_of(32), "matmul: {} inputs", self.inputs);
        if most_rows > Self::MOST_ROWS {
            let tiles = self.outputs.div_ceil(128) * most_rows.div_ceil(64);
            // As many as fill all SMs once; of the bits of few rows eight or none.
            let room = (Self::AT_ONCE * sms / tiles).clamp(1, Self::SPLITS);
            let splits = match of_any_bits {
                _ if self.parts == Ptr::NULL || tiles > Self::TICKETS || room == 1 => 1,
                Some(most) => room.min(most.max(1)),
                None => Self::SPLITS,
            };
            let kernels = if of_any_bits.is_none() && splits == 1 {
                [
                    "matmul_64_bf16_parts",
                    "matmul_64_int4_parts",
                    "matmul_64_fp8_parts",
                    "matmul_64_int8_parts",
                ]
            } else {
                ["matmul_64_bf16", "matmul_64_int4", "matmul_64_fp8", "matmul_64_int8"]
            };
            return Launch::new(choose_by_form(self.form, kernels), [tiles, splits, 1], 256, self);
        }
        let kernels = [
            ["matmul_8_bf16", "matmul_16_bf16"],
            ["matmul_8_int4", "matmul_16_int4"],
            ["matmul_8_fp8", "matmul_16_fp8"],
            ["matmul_8_int8", "matmul_16_int8"],
        ];
        self.tensor(kernels, most_rows, sms, self)
    }

    /// Whether there is a kernel in bf16 for so many rows, of so many inputs, that does what follows too.
    #[must_use]
    pub fn fits(most_rows: u32, inputs: u32) -> bool {
        most_rows <= Self::MOST_ROWS && inputs.is_multiple_of(32)
    }

    /// Outputs of a block.
    const TILE: u32 = 16;

    /// On tensor cores, by the kernel for up to 8 or for up to 16 rows, of weights in bf16, 4 bits, FP8 or int8.
    fn tensor<A>(self, kernels: [[&'static str; 2]; 4], most_rows: u32, sms: u32, args: A) -> Launch<A> {
        assert!(Self::fits(most_rows, self.inputs), "matmul: {most_rows} rows of {} inputs", self.inputs);
        self.tiled(choose_by_form(self.form, kernels)[usize::from(most_rows > 8)], sms, args)
    }

    fn tiled<A>(self, kernel: &'static str, sms: u32, args: A) -> Launch<A> {
        Launch::new(kernel, [strided(self.outputs.div_ceil(Self::TILE), sms, 8), 1, 1], 256, args)
    }
}

/// FP8.
const FP8: u32 = 4;
/// int8.
const INT8: u32 = 5;

/// What kernels call weights in records, and 0 those that are not. There are none of E2M1.
#[must_use]
pub fn form_of(weights: Option<RecordForm>) -> u32 {
    match weights {
        None | Some(RecordForm::FourBits(FourBitForm::E2m1)) => 0,
        Some(RecordForm::FourBits(FourBitForm::Symmetric)) => 1,
        Some(RecordForm::FourBits(FourBitForm::Minima)) => 2,
        Some(RecordForm::FourBits(FourBitForm::ZeroPoints)) => 3,
        Some(RecordForm::EightBits(EightBitForm::Fp8)) => FP8,
        Some(RecordForm::EightBits(EightBitForm::Int8)) => INT8,
    }
}

/// Of one for weights in bf16, and one each for 4 bits, FP8 and int8, that for weights of this form.
pub(super) fn choose_by_form<T>(form: u32, [bf16, four_bits, fp8, int8]: [T; 4]) -> T {
    match form {
        0 => bf16,
        FP8 => fp8,
        INT8 => int8,
        _ => four_bits,
    }
}

/// A matrix in records as rows of bf16.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DequantiseArgs {
    /// Its [records](crate::WeightRecords).
    pub records: Ptr,
    /// bf16 `[outputs][inputs]`.
    pub out: Ptr,
    /// Inputs: a multiple of 32.
    pub inputs: u32,
    /// Outputs: a multiple of 8.
    pub outputs: u32,
    /// Its [form](form_of).
    pub form: u32,
}

impl DequantiseArgs {
    /// A warp for a record.
    #[must_use]
    pub fn launch(self, sms: u32) -> Launch<DequantiseArgs> {
        let records = self.outputs.div_ceil(8) * self.inputs.div_ceil(128);
        let kernel = match self.form {
            FP8 => "dequantise_fp8",
            INT8 => "dequantise_int8",
            _ => "dequantise_int4",
        };
        Launch::new(kernel, [strided(records.div_ceil(8), sms, 8), 1, 1], 256, self)
    }
}

/// Gate and up to what the activation makes of them, in bf16.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulActivateArgs {
    /// Gates, then what they gate; `out` is bf16, `[rows][half of the outputs]`. Nothing is added to.
    pub product: MatmulArgs,
    /// Its place in [`crate::ops::Activation::ALL`].
    pub activation: u32,
}

impl MatmulActivateArgs {
    /// # Panics
    /// As [`MatmulArgs::launch`] in bf16.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<MatmulActivateArgs> {
        let kernels = [
            ["matmul_8_activate", "matmul_16_activate"],
            ["matmul_8_int4_activate", "matmul_16_int4_activate"],
            ["matmul_8_fp8_activate", "matmul_16_fp8_activate"],
            ["matmul_8_int8_activate", "matmul_16_int8_activate"],
        ];
        self.product.tensor(kernels, most_rows, sms, self)
    }
}

/// A product in bf16, and the norm of its rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulNormArgs {
    /// The product.
    pub product: MatmulArgs,
    /// What is then done with its rows; `out` is bf16.
    pub norm: RmsNormArgs,
    /// u32: 0, and 0 again afterwards.
    pub tickets: Ptr,
}

impl MatmulNormArgs {
    /// Most rows that are normalised here: the last block does it alone, some 4 us for each on an H200 where a launch takes 3 for all.
    pub const MOST_ROWS: u32 = 2;

    /// # Panics
    /// As [`MatmulArgs::launch`] in bf16, or if there are more rows than [`Self::MOST_ROWS`].
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<MatmulNormArgs> {
        assert!(most_rows <= Self::MOST_ROWS, "matmul: the norm of {most_rows} rows");
        let kernels = ["matmul_8_norm", "matmul_8_int4_norm", "matmul_8_fp8_norm", "matmul_8_int8_norm"];
        self.product.tensor(kernels.map(|kernel| [kernel; 2]), most_rows, sms, self)
    }
}

/// A product in bf16 that makes queries, keys and values, and what is then done with its heads.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulHeadsArgs {
    /// The product.
    pub product: MatmulArgs,
    /// Bias, norm, rotation, and where keys and values go, of its outputs.
    pub heads: QkvArgs,
    /// u32 for each head of queries, keys and values: 0, and 0 again afterwards.
    pub tickets: Ptr,
}

impl MatmulHeadsArgs {
    /// Whether a head of so many elements is whole tiles of outputs.
    #[must_use]
    pub fn fits(head_dim: u32) -> bool {
        head_dim.is_multiple_of(MatmulArgs::TILE) && head_dim <= 256
    }

    /// # Panics
    /// As [`MatmulArgs::launch`] in bf16, or if heads do not [fit](MatmulHeadsArgs::fits).
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<MatmulHeadsArgs> {
        assert!(Self::fits(self.heads.head_dim), "qkv: a head of {}", self.heads.head_dim);
        let kernels = [
            ["matmul_8_heads", "matmul_16_heads"],
            ["matmul_8_int4_heads", "matmul_16_int4_heads"],
            ["matmul_8_fp8_heads", "matmul_16_fp8_heads"],
            ["matmul_8_int8_heads", "matmul_16_int8_heads"],
        ];
        self.product.tensor(kernels, most_rows, sms, self)
    }
}

/// Products of each row with a few outputs of a matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScoreTokensArgs {
    /// The element's `[rows][inputs]`.
    pub x: Ptr,
    /// The element's `[outputs][inputs]`.
    pub w: Ptr,
    /// u32 `[rows][each]`.
    pub tokens: Ptr,
    /// f32 `[rows][each]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Inputs.
    pub inputs: u32,
    /// Outputs; a token without one scores 0.
    pub outputs: u32,
    /// Tokens of each row.
    pub each: u32,
    /// The token of the first output.
    pub first: u32,
    /// The vocabulary; a token beyond it scores negative infinity.
    pub vocabulary: u32,
    /// Scores are at most this large: `cap tanh(score / cap)`; 0: no cap.
    pub soft_cap: f32,
}

impl ScoreTokensArgs {
    /// A warp for a token.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<ScoreTokensArgs> {
        let kernel = element.choose("score_tokens_f32", "score_tokens_bf16");
        let blocks = strided((most_rows * self.each).div_ceil(8), sms, 8);
        Launch::new(kernel, [blocks, 1, 1], 256, self)
    }
}
