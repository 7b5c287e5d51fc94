//! Charts as inline SVG, from plain data: names, numbers and units, no type of the simulator, so that reports of real
//! runs draw the same ones.
//!
//! A chart is drawn for a width in CSS pixels and looks right at about that width. A page that has to fit phones and
//! laptops asks for one drawing per width ([`responsive`]) and lets its style sheet show the one that fits; so text
//! keeps its size, and needs no script. Colours come from the style sheet through class names; only a heat map's cells
//! carry their own.

mod canvas;
mod columns;
mod heat;
mod panel;
mod scale;
mod stacked;
mod staircase;

pub(crate) use columns::Columns;
pub(crate) use heat::{Cell, Heat, Shades};
pub(crate) use panel::{Form, Panel};
pub(crate) use scale::Clip;
pub(crate) use stacked::{Mark, Part, Row, Stacked};
pub(crate) use staircase::{Changes, Staircase};

/// The width of a small chart, of which several stand side by side; and of any chart on a phone.
pub(crate) const SMALL: f64 = 344.0;

/// On a tablet or on paper.
pub(crate) const MEDIUM: f64 = 660.0;

/// The full width of the page on a laptop.
pub(crate) const WIDE: f64 = 1040.0;

/// Half of it.
pub(crate) const HALF: f64 = 504.0;

/// The drawings for a phone, a tablet and a laptop, in boxes of which the style sheet shows one.
pub(crate) fn responsive(laptop: f64, draw: impl Fn(f64) -> String) -> String {
    let boxed =
        |class: &str, width: f64| format!("<div class=\"chart {class}\">{}</div>", draw(width));
    [
        boxed("for-phone", SMALL),
        boxed("for-tablet", MEDIUM),
        boxed("for-laptop", laptop),
    ]
    .concat()
}

/// What a shape stands for; the style sheet gives it its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    /// Read from the source.
    Source,
    /// Fetched from a rank of another host.
    Peer,
    /// Fetched from a rank of the same host.
    HostPeer,
    /// Read from an own tier, from 1.
    Tier(usize),
    /// Before the first step; hatched.
    StartUp,
    /// Nothing in particular.
    Plain,
}

/// Tiers beyond this many share the last colour: more hues than these cannot be told apart by everybody.
const TIER_COLOURS: usize = 4;

impl Paint {
    /// The style sheet's name for it.
    pub(crate) fn class(self) -> String {
        match self {
            Self::Source => "p-source".to_owned(),
            Self::Peer => "p-peer".to_owned(),
            Self::HostPeer => "p-host-peer".to_owned(),
            Self::Tier(tier) => format!("p-tier{}", tier.clamp(1, TIER_COLOURS)),
            Self::StartUp => "p-start-up".to_owned(),
            Self::Plain => "p-plain".to_owned(),
        }
    }
}
