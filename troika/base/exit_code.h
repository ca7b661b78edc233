// Exit codes of Troika's programs. A process killed by a signal counts as 128 + signal.
#pragma once

#include "troika/base/error.h"

namespace troika {

enum class ExitCode : int {
  done = 0,
  failure = static_cast<int>(ErrorKind::failure),
  usage = static_cast<int>(ErrorKind::usage),
  peer = static_cast<int>(ErrorKind::peer),
  timeout = static_cast<int>(ErrorKind::timeout),
  requeued = 5,          // ended on request after saving; the job was requeued
  stopped = 6,           // ended on request after saving; the job was not requeued
  not_executable = 127,  // the launcher cannot execute the program, as in a shell
};

}  // namespace troika
