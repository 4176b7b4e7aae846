"""Is a character's backstory consistent with the novel?"""
