/*
 * Whether a sanitizer is in the program: it is many times slower then, and memory means nothing.
 * TEST_IS_TSAN: the one that looks for races, to which cases of one thread can show nothing.
 */
#ifndef TAMIS_TEST_SANITIZED_H
#define TAMIS_TEST_SANITIZED_H

#ifndef __has_feature
#define __has_feature(name) 0
#define TEST_UNDEFINES_HAS_FEATURE
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define TEST_IS_TSAN 1
#else
#define TEST_IS_TSAN 0
#endif

#if TEST_IS_TSAN || defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define TEST_IS_SANITIZED 1
#else
#define TEST_IS_SANITIZED 0
#endif

#ifdef TEST_UNDEFINES_HAS_FEATURE
#undef TEST_UNDEFINES_HAS_FEATURE
#undef __has_feature
#endif

#endif
