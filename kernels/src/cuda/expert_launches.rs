//! Launches of a mixture of experts: which rows go to which, their products, and the sum. How many rows an expert gets is known on the device alone, so
//! that a launch is the same for all passes of a bucket.

use super::launch::{Element, Launch, Ptr, strided};
use super::matmul_launches::choose_by_form;
use super::row_launches::RmsNormArgs;

/// The logits of the experts, of rows as normalised; f32 in every variant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouterArgs {
    /// f32 `[rows][hidden]`.
    pub x: Ptr,
    /// f32 `[hidden]`.
    pub norm: Ptr,
    /// f32 `[outputs][hidden]`.
    pub w: Ptr,
    /// f32 `[outputs]`, or null.
    pub bias: Ptr,
    /// f32 `[rows][outputs]`.
    pub logits: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The hidden size.
    pub hidden: u32,
    /// Experts, and the gate of the shared one behind them.
    pub outputs: u32,
    /// Of the norm.
    pub eps: f32,
}

impl RouterArgs {
    /// A warp for an output of four rows.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<RouterArgs> {
        let warps = most_rows.div_ceil(4) * self.outputs;
        Launch::new("router", [strided(warps.div_ceil(8), sms, 8), 1, 1], 256, self)
    }
}

/// Where the groups of a pass are: the rows of each expert, experts in their order.
#[derive(Clone, Copy, Debug)]
pub struct ExpertGroups {
    /// u32: how many there are.
    pub hit: Ptr,
    /// u32 `[experts]`: of each group.
    pub experts: Ptr,
    /// u32 `[experts + 1]`: where its rows begin, and where the last one's end.
    pub starts: Ptr,
    /// u32 `[rows * active]`: of each such place, which row of the pass stands there.
    pub rows: Ptr,
}

/// Each row's experts by its logits, and the groups.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RouteArgs {
    /// f32 `[rows][stride]`: the first `count`.
    pub logits: Ptr,
    /// u32 `[rows][active]`: each row's experts, ascending.
    pub chosen: Ptr,
    /// f32 `[rows][active]`: by what each is weighed.
    pub weights: Ptr,
    /// u32 `[rows][active]`: where each stands among the rows of all groups.
    pub places: Ptr,
    /// [`ExpertGroups::rows`].
    pub group_rows: Ptr,
    /// [`ExpertGroups::hit`].
    pub hit: Ptr,
    /// [`ExpertGroups::experts`].
    pub experts: Ptr,
    /// [`ExpertGroups::starts`].
    pub starts: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// u32: 0, and 0 again afterwards.
    pub tickets: Ptr,
    /// Experts: at most [`RouteArgs::MOST_EXPERTS`].
    pub count: u32,
    /// Logits of a row.
    pub stride: u32,
    /// Experts of a row: at most [`RouteArgs::MOST_ACTIVE`].
    pub active: u32,
    /// 1: weights are the softmax over a row's experts; 0: over all.
    pub renormed: u32,
}

impl RouteArgs {
    /// Experts that there may be.
    pub const MOST_EXPERTS: u32 = 1024;
    /// Experts that a row may go to.
    pub const MOST_ACTIVE: u32 = 32;

    /// A warp for a row; one block groups them.
    ///
    /// # Panics
    /// If there are more experts than there may be.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<RouteArgs> {
        let fits = self.count <= Self::MOST_EXPERTS && (1..=Self::MOST_ACTIVE).contains(&self.active);
        assert!(fits && self.active <= self.count, "route: {} of {} experts", self.active, self.count);
        Launch::new("route", [strided(most_rows.div_ceil(32), sms, 1), 1, 1], 1024, self)
    }
}

/// Products of each group's rows with the matrix of its expert.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertsArgs {
    /// The element's `[..][inputs]`.
    pub x: Ptr,
    /// The element's `[experts][outputs][inputs]`, or the [records](crate::WeightRecords) of one expert after the other.
    pub w: Ptr,
    /// f32 `[experts][outputs]`, or null.
    pub bias: Ptr,
    /// By places: f32 `[..][outputs]`; activated the element's, `[..][half of the outputs]`.
    pub out: Ptr,
    /// [`ExpertGroups::hit`].
    pub hit: Ptr,
    /// [`ExpertGroups::experts`].
    pub experts: Ptr,
    /// [`ExpertGroups::starts`].
    pub starts: Ptr,
    /// [`ExpertGroups::rows`]: which row of `x` stands in a place; or null: `x` is by places too.
    pub group_rows: Ptr,
    /// Inputs.
    pub inputs: u32,
    /// Outputs; gates, then what they gate, where they are activated.
    pub outputs: u32,
    /// Its place in [`crate::ops::Activation::ALL`], where they are.
    pub activation: u32,
    /// Of weights in records their [form](super::form_of), else 0.
    pub form: u32,
}

impl ExpertsArgs {
    /// Gate and up to what the activation makes of them.
    #[must_use]
    pub fn activate(self, element: Element, most: MostGroups, sms: u32) -> Launch<ExpertsArgs> {
        let plain = ["experts_activate_f32", "experts_activate_bf16"];
        let tiled = [
            ["experts_activate_8", "experts_activate_32"],
            ["experts_activate_8_int4", "experts_activate_32_int4"],
            ["experts_activate_8_fp8", "experts_activate_32_fp8"],
            ["experts_activate_8_int8", "experts_activate_32_int8"],
        ];
        self.launched(plain, tiled, self.outputs / 2, 8, (element, most, sms))
    }

    /// The projection back.
    #[must_use]
    pub fn launch(self, element: Element, most: MostGroups, sms: u32) -> Launch<ExpertsArgs> {
        let tiled = [
            ["experts_8", "experts_32"],
            ["experts_8_int4", "experts_32_int4"],
            ["experts_8_fp8", "experts_32_fp8"],
            ["experts_8_int8", "experts_32_int8"],
        ];
        self.launched(["experts_f32", "experts_bf16"], tiled, self.outputs, 16, (element, most, sms))
    }

    /// `outputs` are written of each row, so many by a tile.
    fn launched(
        self,
        [f32, bf16]: [&'static str; 2],
        tiled: [[&'static str; 2]; 4],
        outputs: u32,
        tile: u32,
        (element, most, sms): (Element, MostGroups, u32),
    ) -> Launch<ExpertsArgs> {
        // A warp of eight has an output where there are no tiles.
        let (kernel, each) = match element {
            Element::F32 => (f32, 8),
            Element::Bf16 if !self.inputs.is_multiple_of(32) => (bf16, 8),
            Element::Bf16 => (choose_by_form(self.form, tiled)[usize::from(most.rows > 8)], tile),
        };
        let blocks = strided(most.groups.saturating_mul(outputs.div_ceil(each)), sms, 8);
        Launch::new(kernel, [blocks, 1, 1], 256, self)
    }
}

/// What the groups of a pass may be.
#[derive(Clone, Copy, Debug)]
pub struct MostGroups {
    /// Groups.
    pub groups: u32,
    /// Rows of one.
    pub rows: u32,
}

impl MostGroups {
    /// Of a pass of up to so many rows, each of which goes to `active` of `count` experts.
    #[must_use]
    pub fn of(most_rows: u32, active: u32, count: u32) -> MostGroups {
        MostGroups { groups: most_rows.saturating_mul(active).min(count), rows: most_rows }
    }
}

/// What its experts have made of each row, weighed and added; then the norm of the sum.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumExpertsArgs {
    /// Of `out`, as the next branch begins; where its own `out` is null there is none.
    pub norm: RmsNormArgs,
    /// f32 `[..][cols]`, by places.
    pub products: Ptr,
    /// [`RouteArgs::places`].
    pub places: Ptr,
    /// [`RouteArgs::weights`].
    pub weights: Ptr,
    /// What the shared expert has made of each row, f32 `[rows][cols]`; or null.
    pub shared: Ptr,
    /// f32: that of a row is weighed by the sigmoid of the number `gate_stride` behind the row's before.
    pub gates: Ptr,
    /// f32 `[rows][cols]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The hidden size.
    pub cols: u32,
    /// Experts of a row.
    pub active: u32,
    /// See `gates`.
    pub gate_stride: u32,
    /// 1: add to `out`; 0: overwrite it.
    pub add: u32,
}

impl SumExpertsArgs {
    /// One block for a row; the element is that of the norm's rows.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<SumExpertsArgs> {
        let kernel = element.choose("sum_experts_f32", "sum_experts_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], 256, self)
    }
}
