#include "troika/comm/lifeline.h"

#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/base/log.h"

namespace troika::comm {

namespace {

// Enough for news inside a cluster, and too little to be noticed by who waits for an error.
constexpr Milliseconds kNewsTime{1000};

}  // namespace

Lifeline::Lifeline(std::shared_ptr<cluster::Rendezvous> rendezvous, std::function<void()> wake)
    : rendezvous_(std::move(rendezvous)) {
  rendezvous_->on_peer_lost([this, wake = std::move(wake)](int rank, const std::string& how) {
    {
      const std::lock_guard lock(mutex_);
      if (cut_) return;
      lost_rank_ = rank;
      how_ = how;
      cut_ = true;
    }
    news_.notify_all();
    wake();
  });
}

Lifeline::~Lifeline() {
  try {
    if (rendezvous_) rendezvous_->leave();
  } catch (const Error& error) {
    log::warn("[comm] could not part from the other ranks: {}", error.what());
  }
}

void Lifeline::require_uncut() const {
  if (!cut_) return;
  const std::lock_guard lock(mutex_);
  throw Error("comm", ErrorKind::peer,
              {.what = fmt::format("rank {} is gone: {}", lost_rank_, how_)});
}

void Lifeline::explain_broken_connection() const {
  {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, kNewsTime, [&] { return cut_.load(); });
  }
  require_uncut();
}

void Lifeline::abandon(const std::string& reason) {
  std::shared_ptr<cluster::Rendezvous> rendezvous;
  {
    const std::lock_guard lock(mutex_);
    rendezvous = std::move(rendezvous_);
  }
  if (rendezvous) rendezvous->fail(reason, Deadline::after(kNewsTime));
}

}  // namespace troika::comm
