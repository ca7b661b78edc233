// Measures the processor time that a thread spends outside of operators of LibTorch's dispatcher.
// Troika's processes and, through ctypes, Python's load the same library, so outside_operators
// measures both in the same way.
//
// The time of operators is from entering the outermost one to leaving it, by LibTorch's callbacks
// around them (at::RecordFunction). Registered operators of Troika count as LibTorch's do.
#pragma once

extern "C" {

// From now on, operators of all threads are timed. Call it once, outside of operators.
void operator_time_start();
// Processor seconds of the calling thread so far, without those in operators.
double operator_time_outside();
}
