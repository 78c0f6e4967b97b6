//! How full a server is, for operators who look.

/// Something that viewers use up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// What: `streams`, `bits a second`, `bits a second of the links`, `places in the cache`, or `thousandths of the core of engine 0`.
    pub what: String,
    /// How much of it, in that unit.
    pub used: u64,
    /// How much viewers may use.
    pub of: u64,
}

impl InUse {
    pub(crate) fn new(what: impl Into<String>, used: u64, of: u64) -> Self {
        Self { what: what.into(), used, of }
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::units::BitRate;

    use super::super::{Admission, AdmissionConfig, Demand};
    use super::*;

    #[test]
    fn in_use_reports_each_measured_resource_with_its_limit() {
        let demand = |bits_per_s| Demand { packets_per_s: 0, bits_per_s };
        let on = AdmissionConfig {
            is_on: true,
            max_busy_permille: 800,
            link_rate: Some(BitRate(100)),
            ..AdmissionConfig::off()
        };
        let mut admission = Admission::new(on, 2);
        let told = |admission: &Admission| admission.in_use([demand(25), demand(12)].into_iter(), 5);
        let measured = [
            InUse::new("thousandths of the core of engine 0", 0, 800),
            InUse::new("thousandths of the core of engine 1", 0, 800),
            InUse::new("bits a second of the links", 42, 100),
        ];
        assert_eq!(told(&admission), measured);
        let figures = super::super::CacheFigures { positions: 3, positions_max: 9, ..Default::default() };
        admission.look_at_cache(millrace_core::time::Instant(0), figures);
        assert_eq!(told(&admission)[3..], [InUse::new("places in the cache", 3, 9)]);
        assert_eq!(told(&Admission::new(AdmissionConfig::off(), 2)), []);
    }
}
