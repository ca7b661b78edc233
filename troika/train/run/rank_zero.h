// Code that runs on rank 0 only or first, as Lightning's rank_zero_only and rank_zero_first.
#pragma once

#include <exception>
#include <string>

#include "troika/base/error.h"
#include "troika/comm/group.h"

namespace troika::train {

// Calls `body` on rank 0 only; other ranks continue at once. `body` must not call collectives: only
// rank 0 would call them, and the group would refuse them or time out.
template <typename Body>
void rank_zero_only(const comm::Group& group, const Body& body) {
  if (group.rank() == 0) body();
}

// Calls `body` on rank 0, and then on all other ranks at the same time, for example to fill a cache
// on rank 0 that the others find. An error on rank 0 is rethrown there, and is Error(peer) on the
// other ranks. Called by all ranks; blocks.
template <typename Body>
void rank_zero_first(const comm::Group& group, const Body& body) {
  std::exception_ptr problem;
  std::string message;
  if (group.rank() == 0) {
    try {
      body();
    } catch (const std::exception& caught) {
      problem = std::current_exception();
      message = std::string("!") + caught.what();
    }
  }
  message = group.broadcast_text(message, 0, "rank 0 first");
  if (!message.empty()) {
    // Waits until all ranks know the message. Otherwise they would see only that rank 0 has exited.
    try {
      group.barrier({.label = "rank 0 first"});
    } catch (const Error&) {
    }
    if (problem) std::rethrow_exception(problem);
    throw Error("train", ErrorKind::peer,
                {.what = "rank 0, which runs first, failed", .got = message.substr(1)});
  }
  if (group.rank() != 0) body();
}

}  // namespace troika::train
