// Who of a group's ranks is gone: the control connection as a back end between processes needs it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "troika/cluster/rendezvous.h"

namespace troika::comm {

// Messages between processes only show that some connection broke, often to a rank that itself gave
// up over another one. The control connection knows which rank was lost first, within milliseconds,
// also where the transport would show nothing. All functions may be called from any thread.
class Lifeline {
 public:
  // `wake` is called on another thread when a rank is lost, to end waits that are under way.
  Lifeline(std::shared_ptr<cluster::Rendezvous> rendezvous, std::function<void()> wake);
  // Leaves in peace unless abandon() came before.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  bool is_cut() const { return cut_; }
  // Throws Error(peer) naming the rank that was lost first, and how.
  void require_uncut() const;
  // The same after giving the news of a loss a moment to arrive: a broken connection may be seen
  // before it.
  void explain_broken_connection() const;
  // Tells the others that this rank is gone, and why. Its own waits are not woken.
  void abandon(const std::string& reason);

 private:
  std::atomic<bool> cut_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable news_;
  int lost_rank_ = -1;
  std::string how_;  // it was lost
  std::shared_ptr<cluster::Rendezvous> rendezvous_;
};

}  // namespace troika::comm
