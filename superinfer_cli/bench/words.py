"""Everyday English words of which prompts are made: real text for any tokenizer, without a data set."""

_TEXT = """
the a of and to in is was for on with as by at from that this it be are were which or an have has had not but
patient report after before between during morning evening night doctor nurse room bed chart heart pressure
temperature breathing pain chest head arm fever cough blood sample test result normal high low rising falling
steady urgent routine clinic hospital ward surgery medicine dose tablet hours minutes days week history family
allergy condition treatment plan review discharge transfer admitted arrived waiting called answered
company quarter market price growth cost revenue customer product service order delivery team project budget
meeting notes summary decision action risk issue change request system network server storage memory power water
river mountain city street house garden school teacher student book letter paper question answer example number
first second third last next several many few most some every other new old young small large long short early
late open closed clear simple strong weak good better best common rare possible likely certain known unknown
show find give take make use see look ask tell write read move turn keep hold start stop bring carry follow
measure compare explain describe record include require expect allow continue remain appear become seem
quickly slowly often never always sometimes usually already again soon today yesterday tomorrow however because
"""

WORDS = tuple(_TEXT.split())
