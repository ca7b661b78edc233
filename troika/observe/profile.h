// Measures the time of the trainer's actions: Lightning's simple profiler.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "troika/base/clock.h"

namespace troika::observe {

// For use by one thread. Actions may contain other actions, so their times do not add up.
class Profile {
 public:
  void add(const std::string& action, Clock::duration time);

  // Returns Lightning's table of seconds since this object was made, ordered by the total time of
  // the actions.
  std::string table() const;
  // Prints the table, and writes it to `folder`/`title`-profile.txt.
  void report(const std::filesystem::path& folder, const std::string& title) const;

  // Measures an action from here to the end of the scope; does nothing if `profile` is null.
  class [[nodiscard]] Span {
   public:
    Span(Profile* profile, const char* action) : profile_(profile), action_(action) {
      if (profile_) start_ = Clock::now();
    }
    ~Span() {
      if (profile_) profile_->add(action_, Clock::now() - start_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Profile* profile_;
    const char* action_;
    Clock::time_point start_;
  };

 private:
  struct Entry {
    int64_t calls = 0;
    Clock::duration total = {};
  };

  const Stopwatch since_start_;
  std::map<std::string, Entry> entries_;
};

}  // namespace troika::observe
