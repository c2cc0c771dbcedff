//! How much memory a command may have, all its memories and tables together.

use wasmtime::{ResourceLimiter, Result};

/// Bytes of an element of a table in the runtime.
const ELEMENT: usize = size_of::<usize>();

#[derive(Debug)]
pub(crate) struct MemoryLimit {
    used: u64,
    most: u64,
    /// What the runtime was last allowed, in case it fails to get it from the kernel.
    last: u64,
}

impl MemoryLimit {
    pub(crate) fn new(most: u64) -> MemoryLimit {
        MemoryLimit {
            used: 0,
            most,
            last: 0,
        }
    }

    fn grow(&mut self, by: usize) -> bool {
        let by = u64::try_from(by).unwrap_or(u64::MAX);
        let allowed = self
            .used
            .checked_add(by)
            .is_some_and(|sum| sum <= self.most);
        self.last = if allowed { by } else { 0 };
        self.used += self.last;
        allowed
    }

    fn give_back(&mut self) {
        self.used -= self.last;
        self.last = 0;
    }
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        Ok(self.grow(desired.saturating_sub(current)))
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> Result<()> {
        self.give_back();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        Ok(self.grow(desired.saturating_sub(current).saturating_mul(ELEMENT)))
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> Result<()> {
        self.give_back();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_and_tables_share_one_limit() {
        let mut limit = MemoryLimit::new(100);
        assert!(limit.memory_growing(0, 60, None).unwrap());
        assert!(limit.memory_growing(0, 32, None).unwrap());
        assert!(!limit.table_growing(0, 2, None).unwrap(), "16 bytes more");
        assert!(limit.table_growing(0, 1, None).unwrap(), "8 bytes fit");
        assert!(!limit.memory_growing(60, usize::MAX, None).unwrap());
    }

    #[test]
    fn what_the_kernel_refused_is_free_again() {
        let mut limit = MemoryLimit::new(100);
        assert!(limit.memory_growing(0, 90, None).unwrap());
        limit
            .memory_grow_failed(wasmtime::Error::msg("no memory"))
            .unwrap();
        assert!(limit.memory_growing(0, 100, None).unwrap());
        // One that was refused here was never counted.
        assert!(!limit.memory_growing(100, 101, None).unwrap());
        limit.memory_grow_failed(wasmtime::Error::msg("")).unwrap();
        assert!(!limit.memory_growing(100, 101, None).unwrap());
    }
}
