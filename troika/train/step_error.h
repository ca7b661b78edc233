// Errors of LibTorch in the steps of a task, told as a user can act on them.
#pragma once

#include <exception>
#include <string>

#include "troika/data/batch.h"

namespace troika::train {

// To be called in the handler of `problem`. Of an error of LibTorch, throws Error(failure) that
// says `where` it was, LibTorch's message, and the shapes of `batch` if there is one; the former is
// nested in it (std::rethrow_if_nested). Rethrows anything else.
[[noreturn]] void rethrow_plainly(const std::exception& problem, const std::string& where,
                                  const data::Batch* batch = nullptr);

// Returns what `body` returns; what it throws goes through rethrow_plainly().
template <typename Body>
decltype(auto) with_plain_errors(const std::string& where, const Body& body,
                                 const data::Batch* batch = nullptr) {
  try {
    return body();
  } catch (const std::exception& problem) {
    rethrow_plainly(problem, where, batch);
  }
}

}  // namespace troika::train
