/*
 * Temporary folders for tests. Every call ends the test program with a message when the system
 * refuses something: tests need not check.
 */
#ifndef TAMIS_TEST_TEMP_DIR_H
#define TAMIS_TEST_TEMP_DIR_H

#include <stddef.h>

/* A fresh folder under $TMPDIR or /tmp; free the name with test_temp_dir_remove. */
char *test_temp_dir_make(void);
/* Removes the folder with all in it, and frees the name. */
void test_temp_dir_remove(char *dir);

/* "dir/name", to be freed by the caller. */
char *test_path(const char *dir, const char *name);

void test_file_write(const char *dir, const char *name, const void *data, size_t bytes);
void test_file_write_text(const char *dir, const char *name, const char *text);
/* The whole file, NUL-terminated, to be freed by the caller; bytes may be NULL. */
char *test_file_read(const char *dir, const char *name, size_t *bytes);
void test_file_copy(const char *from_dir, const char *to_dir, const char *name);
/* Copies the files (not the folders) in from_dir. */
void test_dir_copy_files(const char *from_dir, const char *to_dir);

#endif
