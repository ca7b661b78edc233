#include "troika/base/log.h"

#include <gmock/gmock.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

// ThreadSanitizer sees a race if a change is not safe.
TEST(Log, PrefixAndFilesMayChangeWhileThreadsLog) {
  constexpr int kThreads = 4;
  const TemporaryFolder folder;
  testing::internal::CaptureStderr();
  std::latch start(kThreads + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 200; ++i) log::info("of a thread");
    });
  }
  start.arrive_and_wait();
  for (int i = 0; i < 20; ++i) {
    log::set_prefix("rank " + std::to_string(i));
    log::also_to_file(folder.path() / std::to_string(i));
  }
  for (auto& thread : threads) thread.join();
  log::info("the end");
  log::set_prefix("");
  testing::internal::GetCapturedStderr();
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(read_file(folder.path() / std::to_string(i)),
                testing::HasSubstr(" [rank 19] info: the end"));
  }
}

}  // namespace
}  // namespace troika
