// The time that a thread spends in operators of LibTorch's dispatcher: one library for our
// processes and, through ctypes, for Python's, so that outside_operators measures both by the same
// means.
//
// Counts from entering the outermost operator to leaving it, by LibTorch's own callbacks around
// operators (at::RecordFunction). Operators of ours that are registered count as LibTorch's do.
#pragma once

extern "C" {

// From now on, operators of all threads are timed. To be called once, outside of operators.
void operator_time_start();
// The seconds of the calling thread so far.
double operator_time_seconds();
}
