//! Nanoseconds a datagram, by class of burst and way, and the plan that follows.

use std::fmt;

use crate::egress_select::plan::{Class, EgressPath, EgressPlan};

/// Another way must be this much cheaper than the kernel's, as a fraction, to be taken: less is within the noise of a
/// measurement, and the kernel's way has queues, firewalls and counters that its users know.
const BETTER_BY: f64 = 0.05;

/// Nanoseconds of processor time a datagram; `None` where a path could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostTable {
    ns: [[Option<f64>; EgressPath::COUNT]; Class::COUNT],
}

impl CostTable {
    /// Returns the cost of a datagram.
    pub fn ns(&self, class: Class, way: EgressPath) -> Option<f64> {
        self.ns[class as usize][way as usize]
    }

    /// Records the cost of a datagram. Values that are no sensible figures are not recorded.
    pub fn set(&mut self, class: Class, way: EgressPath, ns: f64) {
        self.ns[class as usize][way as usize] = (ns.is_finite() && ns > 0.0).then_some(ns);
    }

    /// Returns whether anything was measured on this path.
    pub fn has(&self, way: EgressPath) -> bool {
        self.ns.iter().any(|row| row[way as usize].is_some())
    }

    /// The cheapest way for each class, the kernel's if no other is clearly cheaper. Where the kernel's own way has no
    /// figure nothing is known to be better.
    pub fn plan(&self) -> EgressPlan {
        self.plan_among(&[EgressPath::KernelZeroCopy, EgressPath::Xdp])
    }

    /// The same without AF_XDP: for viewers whom no device reaches, and while devices are away.
    pub fn plan_of_kernel(&self) -> EgressPlan {
        self.plan_among(&[EgressPath::KernelZeroCopy])
    }

    fn plan_among(&self, others: &[EgressPath]) -> EgressPlan {
        EgressPlan(Class::ALL.map(|class| {
            let Some(kernel) = self.ns(class, EgressPath::Kernel) else { return EgressPath::Kernel };
            let figures = others.iter().filter_map(|&way| Some((way, self.ns(class, way)?)));
            match figures.min_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((way, ns)) if ns < kernel * (1.0 - BETTER_BY) => way,
                _ => EgressPath::Kernel,
            }
        }))
    }
}

impl fmt::Display for CostTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<8} {:>10} {:>18} {:>10}  best", "burst", "kernel", "kernel-zero-copy", "xdp")?;
        let plan = self.plan();
        for class in Class::ALL {
            let figure = |way| self.ns(class, way).map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0} ns"));
            writeln!(
                f,
                "{:<8} {:>10} {:>18} {:>10}  {}",
                class.name(),
                figure(EgressPath::Kernel),
                figure(EgressPath::KernelZeroCopy),
                figure(EgressPath::Xdp),
                plan.way(class)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_must_be_clearly_cheaper() {
        let mut table = CostTable::default();
        for (class, [kernel, zero_copy, xdp]) in Class::ALL.into_iter().zip([
            [1000.0, 1100.0, 500.0],
            [900.0, 900.0, 860.0],
            [700.0, 600.0, 500.0],
            [400.0, 370.0, 500.0],
            [300.0, f64::NAN, -1.0],
            [300.0, 200.0, 200.0],
        ]) {
            table.set(class, EgressPath::Kernel, kernel);
            table.set(class, EgressPath::KernelZeroCopy, zero_copy);
            table.set(class, EgressPath::Xdp, xdp);
        }
        use EgressPath::{Kernel, KernelZeroCopy, Xdp};
        assert_eq!(table.plan().0, [Xdp, Kernel, Xdp, KernelZeroCopy, Kernel, KernelZeroCopy]);
        let without = table.plan_of_kernel().0;
        assert_eq!(without, [Kernel, Kernel, KernelZeroCopy, KernelZeroCopy, Kernel, KernelZeroCopy]);
        let text = table.to_string();
        assert!(text.contains("500 ns  xdp") && text.lines().count() == 7, "{text}");
    }

    #[test]
    fn table_without_kernel_figure_keeps_default_plan() {
        let mut table = CostTable::default();
        assert_eq!(table.plan(), EgressPlan::default());
        table.set(Class::One, EgressPath::Xdp, 1.0);
        assert_eq!(table.plan(), EgressPlan::default());
        assert!(table.has(EgressPath::Xdp) && !table.has(EgressPath::Kernel));
    }
}
