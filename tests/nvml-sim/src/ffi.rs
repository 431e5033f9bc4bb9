//! The C ABI's pointers, checked in one place. Nothing else here dereferences a pointer.
#![allow(unsafe_code, reason = "C callers pass results and texts as raw pointers")]

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_t,
};

/// Where a caller wants a value. Only C callers make one, by calling an exported function; by
/// NVML's contract it is null or points to a writable value for the time of the call.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

/// Where a caller wants a text, of a length it says.
#[repr(transparent)]
#[derive(Debug)]
pub struct TextOut(*mut c_char);

/// A text the caller passes: null, or terminated by a zero.
#[repr(transparent)]
#[derive(Debug)]
pub struct TextIn(*const c_char);

/// An array the caller passes with its length: null, or that many writable values.
#[repr(transparent)]
#[derive(Debug)]
pub struct ArrayOut<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn put(&self, value: T) -> Result<(), nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so writable by the contract of the type; T has no destructor.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What the caller put there, for arguments that go both ways.
    pub(crate) fn get(&self) -> Result<T, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and callers fill arguments that go both ways.
        Ok(unsafe { self.0.read() })
    }
}

impl TextOut {
    pub(crate) fn put(&self, text: &str, length: c_uint) -> Result<(), nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if text.len() >= length {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller's buffer has `length` bytes, more than the text.
        unsafe { self.0.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        // SAFETY: as above; one byte is left for the zero.
        let end = unsafe { self.0.add(text.len()) };
        // SAFETY: `end` lies within the caller's buffer.
        unsafe { end.write(0) };
        Ok(())
    }
}

impl TextIn {
    pub(crate) fn get(&self) -> Result<&str, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so terminated by the contract of the type.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_not_unicode| INVALID_ARGUMENT)
    }
}

impl<T: Copy> ArrayOut<T> {
    pub(crate) fn put(&self, values: &[T], length: usize) -> Result<(), nvmlReturn_t> {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() || values.len() > length {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller's array has `length` values, at least as many as ours.
        unsafe { self.0.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Ok(())
    }
}
