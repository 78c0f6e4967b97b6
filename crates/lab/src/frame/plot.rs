//! Figures that are worth a picture, without the drawing.

/// One picture.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The subject of the picture.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// The data drawn.
    pub series: Vec<Series>,
    /// How it is drawn.
    pub kind: PlotKind,
}

/// How series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotKind {
    /// Points joined by lines, in order of x. Points with a range get whiskers.
    Lines,
    /// A bar for each label and series.
    Bars,
    /// For each label and series a bar from low to high with a mark in between: p10, p50, p99.
    Spread,
}

/// An axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The quantity counted.
    pub label: String,
    /// In which unit; empty for counts.
    pub unit: String,
    /// Powers of ten at equal distances. Values that are not positive are left out then.
    pub is_log: bool,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name for the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<Point>,
}

/// One point: a place on the x axis (a number or a label), a value and the range around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis of lines.
    pub x: f64,
    /// Label of a bar.
    pub label: String,
    /// Lower end of the range.
    pub low: f64,
    /// The value.
    pub y: f64,
    /// Upper end of the range.
    pub high: f64,
}

impl Point {
    /// A point of a line.
    pub fn xy(x: f64, y: f64) -> Self {
        Self { x, label: String::new(), low: y, y, high: y }
    }

    /// A bar.
    pub fn bar(label: impl Into<String>, y: f64) -> Self {
        Self { label: label.into(), ..Self::xy(0.0, y) }
    }

    /// A bar from `low` to `high` with a mark at `y`.
    pub fn spread(label: impl Into<String>, low: f64, y: f64, high: f64) -> Self {
        Self { low, high, ..Self::bar(label, y) }
    }

    /// The same with a range around the value.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Self {
        Self { low, high, ..self }
    }
}

impl Axis {
    /// A linear axis.
    pub fn new(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), is_log: false }
    }

    /// A logarithmic one.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { is_log: true, ..Self::new(label, unit) }
    }
}

impl Series {
    /// Points under a name.
    pub fn new(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { name: name.into(), points }
    }
}

impl Plot {
    /// A picture without series yet.
    pub fn new(kind: PlotKind, title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), kind }
    }

    /// Adds a series.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, points: Vec<Point>) -> Self {
        self.series.push(Series::new(name, points));
        self
    }
}
