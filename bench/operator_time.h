// The processor time that a thread spends outside of operators of LibTorch's dispatcher: one
// library for our processes and, through ctypes, for Python's, so that outside_operators measures
// both by the same means.
//
// Operators last from entering the outermost one to leaving it, by LibTorch's own callbacks around
// them (at::RecordFunction). Operators of ours that are registered count as LibTorch's do.
#pragma once

extern "C" {

// From now on, operators of all threads are timed. To be called once, outside of operators.
void operator_time_start();
// Processor seconds of the calling thread so far, without those in operators.
double operator_time_outside();
}
