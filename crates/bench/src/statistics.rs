//! Median, quartiles, least and 99th percentile of a set of samples.

use crate::table::number;
use serde::Serialize;
use std::time::Duration;

/// What is said of a set of samples. The unit is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    pub runs: usize,
    /// The middle one; the mean of the middle two when their number is even.
    pub median: f64,
    /// The least: what it costs when nothing else disturbs.
    pub min: f64,
    /// 99 % of the samples are at most this (nearest rank, so it is a value that was seen).
    pub p99: f64,
    /// A quarter of the samples is at most the first, three quarters at most the second (nearest
    /// rank): half of all lie between them.
    pub quartiles: [f64; 2],
}

impl Summary {
    /// Of samples in any order; nothing for none.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            runs: sorted.len(),
            median: median_of_sorted(&sorted)?,
            min: *sorted.first()?,
            p99: percentile_of_sorted(&sorted, 99)?,
            quartiles: [
                percentile_of_sorted(&sorted, 25)?,
                percentile_of_sorted(&sorted, 75)?,
            ],
        })
    }

    /// The quartiles, for a table.
    pub(crate) fn spread(&self, decimals: usize) -> String {
        let [first, third] = self.quartiles.map(|value| number(value, decimals));
        format!("{first} - {third}")
    }

    /// Of times, in milliseconds.
    pub(crate) fn of_times(times: &[Duration]) -> Option<Summary> {
        let samples: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
        Summary::of(&samples)
    }
}

/// The median of samples in any order; nothing for none.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

/// Between which samples the true median lies in 95 of 100 sets like this one, whatever the
/// distribution (the sign test); with few samples, between the least and the largest.
pub(crate) fn median_interval(samples: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let below = (count as f64 - 1.96 * (count as f64).sqrt()) / 2.0;
    let rank = (below.max(0.0) as usize).saturating_sub(1);
    Some((
        *sorted.get(rank)?,
        *sorted.get(count.checked_sub(rank + 1)?)?,
    ))
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle - 1)?;
    Some(lower + (upper - lower) / 2.0)
}

fn percentile_of_sorted(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// A fixed sequence of orders: every round measures the same things, in another order, so
/// that none always runs while the kernel still takes down what the same one before it left.
#[derive(Debug)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) fn new() -> Self {
        Shuffle(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            // xorshift64: any spread will do, and the same one each time.
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            order.swap(last, (self.0 % (last as u64 + 1)) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_median_lies_in_its_interval_and_more_samples_narrow_it() {
        let samples = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_interval(&samples(3)), Some((1.0, 3.0)));
        assert_eq!(median_interval(&samples(20)), Some((5.0, 16.0)));
        assert_eq!(median_interval(&samples(100)), Some((40.0, 61.0)));
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn p99_is_a_sample_that_was_seen() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&hundred).unwrap().p99, 99.0);
        let two_hundred: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(Summary::of(&two_hundred).unwrap().p99, 198.0);
        assert_eq!(Summary::of(&[5.0, 9.0, 1.0]).unwrap().p99, 9.0);
        assert_eq!(Summary::of(&[5.0]).unwrap().p99, 5.0);
    }

    #[test]
    fn half_of_the_samples_lie_between_the_quartiles() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&hundred).unwrap();
        assert_eq!(summary.quartiles, [25.0, 75.0]);
        assert_eq!(summary.spread(1), "25.0 - 75.0");
        assert_eq!(Summary::of(&[4.0]).unwrap().quartiles, [4.0, 4.0]);
    }

    #[test]
    fn summary_is_independent_of_the_order() {
        let there = Summary::of(&[1.0, 10.0, 3.0, 2.0]).unwrap();
        let back = Summary::of(&[2.0, 3.0, 10.0, 1.0]).unwrap();
        assert_eq!(there, back);
        assert_eq!((there.runs, there.min, there.median), (4, 1.0, 2.5));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn times_are_in_milliseconds() {
        let summary = Summary::of_times(&[Duration::from_micros(1500)]).unwrap();
        assert!((summary.median - 1.5).abs() < 1e-9);
    }

    #[test]
    fn every_round_holds_each_once_and_followers_vary() {
        let mut shuffle = Shuffle::new();
        let mut followers = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let order = shuffle.order(5);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
            followers.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
        }
        assert_eq!(followers.len(), 20);
    }
}
